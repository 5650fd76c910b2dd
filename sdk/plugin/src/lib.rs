//! What connector, processor and error-handler authors use.
