//! The demo's webhooks: payments, orders and shipments of a shop that does not exist.
//!
//! Webhook `index` of a seed is always the same bytes, so the reader at the destination can make it
//! again and compare. The bodies hold what a careless pass through a JSON library would change:
//! integers beyond 64-bit floats (12345678901234567890), decimals with a trailing zero (1.10),
//! escaped and unescaped text of many scripts, repeated white space, and sizes from 200 bytes to 60 KB.

use super::random::Random;
use std::fmt::Write;

/// One webhook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// Its place in the run.
    pub index: u64,
    /// The `Idempotency-Key` that the sender uses on every try.
    pub idempotency_key: String,
    /// The JSON body.
    pub body: Vec<u8>,
}

const KINDS: [&str; 7] = [
    "payment.completed",
    "payment.failed",
    "payment.refunded",
    "order.placed",
    "order.cancelled",
    "shipment.dispatched",
    "shipment.delivered",
];

/// Names as they come in, some escaped by a sender that avoids anything but ASCII.
const NAMES: [&str; 10] = [
    "Ada Lindqvist",
    "José Ñandú",
    "Zoë Krüger-Ōta",
    "Jos\\u00e9 de la Cruz",
    "王小明",
    "Мария Иванова",
    "محمد بن علي",
    "नीलम शर्मा",
    "O'Neil \\\"Red\\\" Byrne",
    "\\ud83d\\ude80 Rocket & Sons",
];

const GOODS: [&str; 8] = [
    "Field notebook, dotted",
    "Käsehobel",
    "Thé vert 🍵 250 g",
    "Lampe à huile",
    "Steel bolt M8×40",
    "折りたたみ傘",
    "Cable 2\\u00a0m",
    "Path \\\\ slash \\/ tab\\t end",
];

const CURRENCIES: [&str; 4] = ["EUR", "USD", "JPY", "CHF"];

/// Amounts that lose something when they pass through a float.
const EXACT: [&str; 6] = [
    "1.10",
    "1000000.00",
    "0.30000000000000004",
    "12345678901234567890",
    "9007199254740993",
    "1E+2",
];

/// Makes webhook `index` of `seed`.
pub fn webhook(seed: u64, index: u64) -> Webhook {
    let mut random = Random::new(seed, index);
    let kind = random.pick(&KINDS);
    let mut body = String::with_capacity(1024);
    // Writing to a String cannot fail.
    let _ = write!(
        body,
        r#"{{"id":"{}","type":"{kind}","created":{}.{:03},"attempt":1,"#,
        event_id(seed, index),
        1_750_000_000 + index / 40,
        random.between(0, 999),
    );
    let family = kind.split('.').next().unwrap_or_default();
    match family {
        "payment" => payment(&mut body, &mut random),
        "order" => order(&mut body, &mut random),
        _ => shipment(&mut body, &mut random),
    }
    body.push('}');
    Webhook {
        index,
        idempotency_key: format!("demo-{seed}-{index}"),
        body: body.into_bytes(),
    }
}

/// The id inside the body, by which the reader at the destination knows the webhook.
pub fn event_id(seed: u64, index: u64) -> String {
    format!("evt_{seed:x}_{index:06}")
}

/// The index in an id that [`event_id`] made for this seed.
pub fn index_of(seed: u64, id: &str) -> Option<u64> {
    id.strip_prefix(&format!("evt_{seed:x}_"))?.parse().ok()
}

fn payment(body: &mut String, random: &mut Random) {
    let amount = amount(random);
    let _ = write!(
        body,
        r#""amount":{amount},"currency":"{}","invoice":"INV-{:07}","payer":"#,
        random.pick(&CURRENCIES),
        random.between(1, 9_999_999),
    );
    person(body, random);
    let _ = write!(
        body,
        r#","card":{{"last4":"{:04}","expires":"{:02}/{}"}},"risk":{{"score":0.{}0,"rules":["#,
        random.between(0, 9999),
        random.between(1, 12),
        random.between(27, 33),
        random.between(0, 9),
    );
    list(body, random.between(0, 6), |body, n| {
        let _ = write!(body, r#"{{"rule":"r{n}","hit":{}}}"#, n % 3 == 0);
    });
    body.push_str("]}");
}

fn order(body: &mut String, random: &mut Random) {
    body.push_str(r#""customer": "#);
    person(body, random);
    body.push_str(",\n  \"lines\": [");
    // Most orders are small; one in fifty is a wholesale order of tens of kilobytes.
    let lines = if random.chance(2) {
        random.between(200, 450)
    } else {
        random.between(1, 9)
    };
    for line in 0..lines {
        if line > 0 {
            body.push_str(",\n   ");
        }
        let (goods, price) = (random.pick(&GOODS), amount(random));
        let _ = write!(
            body,
            r#"{{"line":{line},"title":"{goods}","quantity":{},"price":{price},"options":{{"gift":{},"note":null}}}}"#,
            random.between(1, 40),
            random.chance(10),
        );
    }
    let _ = write!(body, "],\n  \"total\": {},   \"tags\": []", amount(random));
}

fn shipment(body: &mut String, random: &mut Random) {
    let _ = write!(
        body,
        r#""tracking":{:020},"carrier":{{"name":"Øresund Post","service":"{}"}},"to":"#,
        // Twenty digits, never a leading zero: beyond what 64 bits hold in half of the cases.
        u128::from(random.between(10_000_000_000, 99_999_999_999)) * 1_000_000_000
            + u128::from(random.between(0, 999_999_999)),
        random.pick(&["standard", "express", "pickup"]),
    );
    person(body, random);
    body.push_str(r#","scans":["#);
    let hub = random.between(1, 40);
    list(body, random.between(1, 12), |body, n| {
        let _ = write!(
            body,
            r#"{{"at":"2026-03-{:02}T0{}:30:00+01:00","place":"hub {}","position":[{}.50,-{}.0001]}}"#,
            n % 28 + 1,
            n % 10,
            hub + n,
            n + 40,
            n + 3,
        );
    });
    body.push(']');
}

fn person(body: &mut String, random: &mut Random) {
    let _ = write!(
        body,
        r#"{{"name":"{}","account":{{"number":{},"since":"20{:02}-0{}-01","contact":{{"email":"user{}@shop.example","phones":[]}}}}}}"#,
        random.pick(&NAMES),
        random.between(u64::MAX / 2, u64::MAX),
        random.between(10, 25),
        random.between(1, 9),
        random.between(1, 99_999),
    );
}

fn amount(random: &mut Random) -> String {
    if random.chance(30) {
        random.pick(&EXACT).to_owned()
    } else {
        let cents = random.between(1, 99_999_999);
        format!("{}.{:02}", cents / 100, cents % 100)
    }
}

fn list(body: &mut String, count: u64, item: impl Fn(&mut String, u64)) {
    for n in 0..count {
        if n > 0 {
            body.push(',');
        }
        item(body, n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FNV-1a, 64 bits: enough to notice that the bytes changed.
    fn digest(seed: u64, count: u64) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for index in 0..count {
            for byte in webhook(seed, index).body {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            }
        }
        hash
    }

    #[test]
    fn the_webhooks_of_a_seed_never_change() {
        assert_eq!(digest(1, 1000), 7_972_501_566_472_878_382);
        assert_ne!(digest(1, 100), digest(2, 100));
    }

    #[test]
    fn every_body_is_json_and_carries_its_id() {
        for index in 0..2000 {
            let webhook = webhook(3, index);
            let value: serde_json::Value = serde_json::from_slice(&webhook.body)
                .unwrap_or_else(|error| panic!("webhook {index}: {error}"));
            assert_eq!(index_of(3, value["id"].as_str().unwrap()), Some(index));
        }
        assert_eq!(index_of(3, &event_id(4, 1)), None);
        assert_eq!(index_of(3, "evt_3_x"), None);
    }

    #[test]
    fn the_bodies_have_the_sizes_and_the_traps_that_they_are_there_for() {
        let bodies: Vec<Vec<u8>> = (0..2000).map(|index| webhook(1, index).body).collect();
        let sizes: Vec<usize> = bodies.iter().map(Vec::len).collect();
        assert!(sizes.iter().min() < Some(&500), "{:?}", sizes.iter().min());
        assert!(
            sizes.iter().max() > Some(&20_000),
            "{:?}",
            sizes.iter().max()
        );
        let mean = sizes.iter().sum::<usize>() / sizes.len();
        assert!((300..5_000).contains(&mean), "{mean}");
        let all = String::from_utf8(bodies.concat()).unwrap();
        for trap in [
            "1.10,",
            "12345678901234567890",
            "王小明",
            "\\u00e9",
            "\n   ",
            "1E+2",
            "🍵",
        ] {
            assert!(all.contains(trap), "{trap:?} never comes");
        }
        // At least one body is changed by a pass through a JSON library, or the traps are none.
        let changed = bodies.iter().filter(|body| {
            let value: serde_json::Value = serde_json::from_slice(body).unwrap();
            serde_json::to_vec(&value).unwrap() != **body
        });
        assert!(changed.count() > 500);
    }
}
