"""`python -m linformer_kit.cli`, for torchrun."""

from . import main

if __name__ == "__main__":
    main()
