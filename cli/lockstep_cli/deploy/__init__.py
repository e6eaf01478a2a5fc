"""Files that a site installs: units, scripts of Slurm, with the site's settings."""
