//! Adapters, acceptance, and the tasks that drive delivery.
