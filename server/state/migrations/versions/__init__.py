"""Hold one module for each version of the schema. A released version is never changed: add the next one."""
