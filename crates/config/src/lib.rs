//! Configuration: YAML with places, checked against a schema.
