"""Models behind an address: `linformer serve`."""
