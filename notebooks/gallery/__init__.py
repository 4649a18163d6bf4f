"""One page of all stored fits, with pictures and tables to copy: `python -m notebooks.gallery` writes it."""
