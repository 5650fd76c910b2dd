//! What the server answered, to the outcome of a write: one table, each row tested.

use consign_plugin::prelude::*;
use std::time::Duration;

/// An exchange without an answer.
#[derive(Debug)]
pub enum Lost {
    /// Nothing left this machine.
    Before(String),
    /// The request may have arrived.
    After(String),
}

/// The outcome of one write.
#[must_use]
pub fn of(answer: Result<String, Lost>) -> Outcome {
    let answer = match answer {
        Ok(answer) => answer,
        Err(Lost::Before(why)) => return Outcome::down(("down", why)),
        // Never "failed": it may have been applied, and only the host knows what a repeat would do.
        Err(Lost::After(why)) => return Outcome::unknown(("no_answer", why)),
    };
    let (word, rest) = answer.split_once(' ').unwrap_or((&answer, ""));
    match word {
        "STORED" => Outcome::delivered(),
        "KNOWN" => Outcome::delivered_repeat(),
        "BAD" => Outcome::refused(("bad_line", rest)),
        "BUSY" => Outcome::throttled(Duration::from_secs(rest.parse().unwrap_or(1))),
        _ => Outcome::failed_maybe(("odd_answer", format!("the server answered {answer:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consign_plugin::Applied;

    #[test]
    fn every_answer_has_its_outcome() {
        let lost = |lost| of(Err(lost));
        let said = |answer: &str| of(Ok(answer.to_owned()));
        assert_eq!(said("STORED"), Outcome::delivered());
        assert!(said("KNOWN").is_repeat());
        assert_eq!(said("BAD no such tag").code(), "bad_line");
        assert_eq!(said("BUSY 7").after(), Some(Duration::from_secs(7)));
        assert_eq!(said("?").applied(), Applied::Maybe);
        assert_eq!(lost(Lost::Before("refused".into())).applied(), Applied::No);
        assert_eq!(lost(Lost::After("cut".into())).applied(), Applied::Maybe);
    }
}
