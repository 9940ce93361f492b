"""One page that answers: how much does Linformer save here, and does it hold for this model?"""
