"""What becomes of the folders of people who are gone, or have not called for long."""
