"""What `make_data` writes: each module has `Arguments` and `write(arguments, folder)`."""
