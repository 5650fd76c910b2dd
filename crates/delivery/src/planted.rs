//! Known bugs that tests plant, to show that the simulation finds them. Without the feature
//! `planted` nothing can be planted and each check is a constant.

use crate::machine::Delivery;

/// A bug to plant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Sends past the durable frontier.
    FrontierNotAwaited,
    /// Sends a repeat before its note is durable.
    NoteNotAwaited,
    /// Counts every failure at once, evidence or not.
    ChargesWithoutEvidence,
    /// Forgets that a resend was ambiguous and sends again.
    ResendsWithoutBound,
    /// Two requests for one order key.
    KeyNotBusy,
    /// Resends at the deadline without waiting for the cancel.
    ResendsBeforeCancel,
    /// Never looks at the window.
    IgnoresWindow,
    /// Gives slots back before settlements are durable.
    SlotsBeforeDurable,
    /// Loses track of a write when the gate closes on it.
    ForgetsOnDown,
    /// Never sends a trial.
    NoTrials,
    /// A half-open gate lets everything through.
    NoCanary,
    /// Seals anew on each attempt.
    SealsAnew,
    /// Takes silence for a delivery.
    SilenceIsDelivery,
    /// Parks a write whose target is out of order.
    ParksOnOutage,
    /// Lets the parked write's order key go on under `hold_key`.
    IgnoresHeldKeys,
}

impl Bug {
    /// All of them.
    #[cfg(feature = "planted")]
    pub const ALL: [Self; 15] = [
        Self::FrontierNotAwaited,
        Self::NoteNotAwaited,
        Self::ChargesWithoutEvidence,
        Self::ResendsWithoutBound,
        Self::KeyNotBusy,
        Self::ResendsBeforeCancel,
        Self::IgnoresWindow,
        Self::SlotsBeforeDurable,
        Self::ForgetsOnDown,
        Self::NoTrials,
        Self::NoCanary,
        Self::SealsAnew,
        Self::SilenceIsDelivery,
        Self::ParksOnOutage,
        Self::IgnoresHeldKeys,
    ];
}

impl Delivery {
    /// Plants a bug.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, bug: Bug) {
        self.planted = Some(bug);
    }

    /// Whether this bug is planted.
    pub(crate) fn has(&self, bug: Bug) -> bool {
        cfg!(feature = "planted") && self.planted == Some(bug)
    }
}
