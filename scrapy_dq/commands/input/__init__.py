"""Input of commands: answers of the user, and the spider with its settings."""
