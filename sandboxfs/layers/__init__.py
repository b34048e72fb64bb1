"""Where do the bytes live? Host directories, reached only through directory descriptors."""
