//! The rules a declaration must keep. One function each, run when a plugin is loaded, by the kit,
//! and in CI. Source of the rules: docs/architecture.md, "Promises".

use crate::{
    DeliveryType, Identity, KeyPlacement, Promise, RepeatKind, SinkDeclaration, SourceDeclaration,
    Window,
};

/// All faults of a sink's declaration, each one sentence; empty when it is coherent.
#[must_use]
pub fn sink(declaration: &SinkDeclaration) -> Vec<String> {
    let rules: [fn(&SinkDeclaration) -> Option<&'static str>; 8] = [
        effectively_once_drops_repeats,
        at_least_once_repeats_are_copies,
        at_most_once_never_repeats,
        only_at_most_once_is_not_applicable,
        unconfirmed_is_at_least_once,
        write_key_is_placed,
        second_copies_have_no_window,
        sealed_needs_the_key,
    ];
    rules
        .iter()
        .filter_map(|rule| rule(declaration))
        .map(str::to_owned)
        .chain(words(declaration))
        .collect()
}

/// All faults of a source's declaration; empty when it is coherent.
#[must_use]
pub fn source(declaration: &SourceDeclaration) -> Vec<String> {
    let mut faults = Vec::new();
    if declaration.delivery == DeliveryType::SessionBased
        && matches!(declaration.identity, Identity::Stable(_))
    {
        faults.push("a session-based source hands nothing over again, so it has no stable identity: declare client_key or none".to_owned());
    }
    if declaration.delivery.is_offset_tracked() && declaration.identity == Identity::ClientKey {
        faults.push(
            "a client key belongs to session-based sources: declare stable, expression or none"
                .to_owned(),
        );
    }
    if declaration.delivery == DeliveryType::OffsetTrackedCumulative
        && !matches!(declaration.identity, Identity::Stable(_))
    {
        faults.push("a cumulative position names its message: declare a stable identity and say of what it is made".to_owned());
    }
    if matches!(&declaration.identity, Identity::Stable(of) if of.trim().is_empty()) {
        faults.push("a stable identity says of what it is made".to_owned());
    }
    faults
}

fn effectively_once_drops_repeats(d: &SinkDeclaration) -> Option<&'static str> {
    (d.promise == Promise::EffectivelyOnce
        && !matches!(d.repeat.kind, RepeatKind::SameTarget | RepeatKind::WriteKey))
    .then_some("effectively once needs a destination that drops a repeat: same_target or write_key")
}

fn at_least_once_repeats_are_copies(d: &SinkDeclaration) -> Option<&'static str> {
    (d.promise == Promise::AtLeastOnce && d.repeat.kind != RepeatKind::SecondCopy)
        .then_some("at least once means that a repeat is a second copy")
}

fn at_most_once_never_repeats(d: &SinkDeclaration) -> Option<&'static str> {
    (d.promise == Promise::AtMostOnce && d.repeat.kind != RepeatKind::NotApplicable)
        .then_some("at most once is never repeated: its repeat is not_applicable")
}

fn only_at_most_once_is_not_applicable(d: &SinkDeclaration) -> Option<&'static str> {
    (d.repeat.kind == RepeatKind::NotApplicable && d.promise != Promise::AtMostOnce)
        .then_some("only at most once leaves the repeat not_applicable")
}

fn unconfirmed_is_at_least_once(d: &SinkDeclaration) -> Option<&'static str> {
    (d.unconfirmed && d.promise != Promise::AtLeastOnce).then_some(
        "what nobody confirms is at least once at best, and at most once needs no such mark",
    )
}

fn write_key_is_placed(d: &SinkDeclaration) -> Option<&'static str> {
    (d.repeat.kind == RepeatKind::WriteKey && matches!(d.key, KeyPlacement::Nowhere(_)))
        .then_some("a destination that drops repeats by the write key must be sent the key")
}

fn second_copies_have_no_window(d: &SinkDeclaration) -> Option<&'static str> {
    (matches!(
        d.repeat.kind,
        RepeatKind::SecondCopy | RepeatKind::NotApplicable
    ) && (d.repeat.window != Window::None || d.repeat.condition.is_some()))
    .then_some("where repeats are not dropped there is neither window nor condition")
}

fn sealed_needs_the_key(d: &SinkDeclaration) -> Option<&'static str> {
    (d.sealed && d.repeat.kind != RepeatKind::WriteKey)
        .then_some("a sealed batch exists for a token per request: its repeat is write_key")
}

fn words(d: &SinkDeclaration) -> Option<String> {
    let text = match &d.key {
        KeyPlacement::On(place) => place,
        KeyPlacement::Nowhere(reason) => reason,
    };
    text.trim()
        .is_empty()
        .then(|| "the key's place, or the reason why it has none, is empty".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchKind, Repeat};

    fn declaration(promise: Promise, kind: RepeatKind) -> SinkDeclaration {
        SinkDeclaration {
            promise,
            unconfirmed: false,
            repeat: Repeat {
                kind,
                condition: None,
                window: Window::None,
            },
            key: KeyPlacement::On("header".into()),
            batch: BatchKind::Independent,
            sealed: false,
            note: String::new(),
        }
    }

    #[track_caller]
    fn one_fault(d: &SinkDeclaration, part: &str) {
        let faults = sink(d);
        assert!(faults.len() == 1 && faults[0].contains(part), "{faults:?}");
    }

    #[test]
    fn coherent_declarations_have_no_fault() {
        for (promise, kind) in [
            (Promise::EffectivelyOnce, RepeatKind::SameTarget),
            (Promise::EffectivelyOnce, RepeatKind::WriteKey),
            (Promise::AtLeastOnce, RepeatKind::SecondCopy),
            (Promise::AtMostOnce, RepeatKind::NotApplicable),
        ] {
            assert!(sink(&declaration(promise, kind)).is_empty());
        }
    }

    #[test]
    fn effectively_once_without_a_drop_is_refused() {
        one_fault(
            &declaration(Promise::EffectivelyOnce, RepeatKind::SecondCopy),
            "drops a repeat",
        );
    }

    #[test]
    fn at_least_once_that_drops_repeats_is_refused() {
        one_fault(
            &declaration(Promise::AtLeastOnce, RepeatKind::SameTarget),
            "second copy",
        );
    }

    #[test]
    fn at_most_once_that_repeats_is_refused() {
        one_fault(
            &declaration(Promise::AtMostOnce, RepeatKind::SecondCopy),
            "never repeated",
        );
    }

    #[test]
    fn not_applicable_belongs_to_at_most_once() {
        assert!(
            sink(&declaration(
                Promise::EffectivelyOnce,
                RepeatKind::NotApplicable
            ))
            .iter()
            .any(|f| f.contains("only at most once"))
        );
    }

    #[test]
    fn unconfirmed_is_never_effectively_once() {
        let mut d = declaration(Promise::EffectivelyOnce, RepeatKind::SameTarget);
        d.unconfirmed = true;
        one_fault(&d, "nobody confirms");
    }

    #[test]
    fn a_write_key_repeat_without_a_place_is_refused() {
        let mut d = declaration(Promise::EffectivelyOnce, RepeatKind::WriteKey);
        d.key = KeyPlacement::Nowhere("no field".into());
        one_fault(&d, "must be sent the key");
    }

    #[test]
    fn a_second_copy_with_a_window_is_refused() {
        let mut d = declaration(Promise::AtLeastOnce, RepeatKind::SecondCopy);
        d.repeat.window = Window::DurationMs(1);
        one_fault(&d, "neither window nor condition");
    }

    #[test]
    fn sealed_without_write_key_is_refused() {
        let mut d = declaration(Promise::EffectivelyOnce, RepeatKind::SameTarget);
        d.sealed = true;
        one_fault(&d, "token per request");
    }

    #[test]
    fn an_empty_key_reason_is_refused() {
        let mut d = declaration(Promise::AtLeastOnce, RepeatKind::SecondCopy);
        d.key = KeyPlacement::Nowhere(" ".into());
        one_fault(&d, "is empty");
    }

    #[test]
    fn sources_keep_their_rules() {
        let source_of = |delivery, identity| SourceDeclaration {
            delivery,
            identity,
            redelivery_bound_ms: None,
            note: String::new(),
        };
        use DeliveryType::{
            OffsetTrackedCumulative as C, OffsetTrackedIndividual as I, SessionBased as S,
        };
        assert!(source(&source_of(S, Identity::ClientKey)).is_empty());
        assert!(source(&source_of(C, Identity::Stable("offset".into()))).is_empty());
        assert!(source(&source_of(I, Identity::None)).is_empty());
        assert_eq!(source(&source_of(S, Identity::Stable("x".into()))).len(), 1);
        assert_eq!(source(&source_of(I, Identity::ClientKey)).len(), 1);
        assert_eq!(source(&source_of(C, Identity::None)).len(), 1);
        assert_eq!(
            source(&source_of(I, Identity::Stable(String::new()))).len(),
            1
        );
    }
}
