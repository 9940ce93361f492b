"""Train variants of one configuration and compare them."""
