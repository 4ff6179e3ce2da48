"""What commands read: files, answers, settings."""
