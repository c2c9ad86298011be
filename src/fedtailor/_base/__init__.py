"""What every other room uses: files, printing, names, settings of the process."""
