"""What every part of the package uses: the process's lock and forks, warnings, log records, progress on a terminal."""
