"""The mathematics. Needs torch and the standard library; nothing here knows of the rest."""
