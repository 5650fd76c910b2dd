//! Tests of a batch whose files are prepared several at a time: order, prefix, and flushes.

use super::*;
use std::{collections::BTreeMap, sync::atomic::AtomicUsize, thread, time::Instant};

fn numbered(count: usize) -> Vec<TestWrite> {
    let one = |n: usize| to(&format!("f{n:02}"), &format!("{n}"));
    (0..count).map(one).collect()
}

/// The name of the unfinished file of the write at this place of a batch.
fn unfinished(sink: &WriteFile, place: usize) -> String {
    let key = (place as u128 + 1).to_be_bytes();
    let writes = testing::batch([TestWrite::new("").key(key)]);
    let key = writes.writes()[0].key();
    sink.0.connection.unfinished(key)
}

#[tokio::test]
async fn files_are_flushed_at_the_same_time_but_not_more_than_sixteen() {
    let f = Folder::new();
    let sink = f.sink(PLAIN).await;
    let (now, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    sink.0.hook.set(move |step| {
        if step != At::FlushFile {
            return;
        }
        let inside = now.fetch_add(1, Ordering::SeqCst) + 1;
        seen.fetch_max(inside, Ordering::SeqCst);
        // Ends early once as many as can be are here.
        let end = Instant::now() + Duration::from_millis(500);
        while seen.load(Ordering::SeqCst) < 16 && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
        now.fetch_sub(1, Ordering::SeqCst);
    });
    assert_eq!(write(&sink, numbered(60)).await, ["delivered"; 60]);
    let most = most.load(Ordering::SeqCst);
    assert!((2..=16).contains(&most), "{most}");
    for n in 0..60 {
        assert_eq!(f.read(&format!("f{n:02}")), n.to_string());
    }
}

#[tokio::test]
async fn the_helping_threads_are_shared_and_a_batch_does_without() {
    let f = Folder::new();
    let sink = f.sink(PLAIN).await;
    let first = sink.0.connection.helpers(4);
    let second = sink.0.connection.helpers(100);
    assert_eq!((first.taken, second.taken), (4, 11));
    assert_eq!(sink.0.connection.helpers(1).taken, 0);
    assert_eq!(write(&sink, numbered(5)).await, ["delivered"; 5]);
    drop((first, second));
    assert_eq!(sink.0.connection.helpers(100).taken, 15);
}

#[tokio::test]
async fn files_appear_in_order_and_only_when_all_are_prepared() {
    const COUNT: usize = 20;
    for config in [PLAIN, KEEP] {
        let f = Folder::new();
        let sink = f.sink(config).await;
        let folder = f.dir.path().to_owned();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let states = Arc::clone(&seen);
        sink.0.hook.set(move |step| {
            if step == At::PutInPlace {
                let entries = std::fs::read_dir(&folder).unwrap();
                let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
                let (hidden, mut named): (Vec<_>, Vec<_>) = names.partition(|n| n.starts_with('.'));
                named.sort();
                states.lock().push((hidden.len(), named));
            }
        });
        assert_eq!(write(&sink, numbered(COUNT)).await, ["delivered"; COUNT]);
        let seen = seen.lock();
        assert_eq!(seen.len(), COUNT);
        for (n, (hidden, named)) in seen.iter().enumerate() {
            let expected: Vec<_> = (0..n).map(|n| format!("f{n:02}")).collect();
            assert_eq!(named, &expected, "{config}");
            assert!(*hidden >= COUNT - n, "{n} {hidden} {config}");
        }
    }
}

#[tokio::test]
async fn the_first_failure_ends_the_batch_whichever_comes_first_in_time() {
    const COUNT: usize = 24;
    for config in [PLAIN, KEEP] {
        for bad in [&[0][..], &[7], &[23], &[5, 6, 12], &[20, 3]] {
            let f = Folder::new();
            let sink = f.sink(config).await;
            // A folder under the name of the unfinished file.
            for place in bad {
                std::fs::create_dir(f.path(&unfinished(&sink, *place))).unwrap();
            }
            sink.0.hook.set(|step| {
                if step == At::FlushFile {
                    thread::sleep(Duration::from_millis(3));
                }
            });
            let first = *bad.iter().min().unwrap();
            let said = write(&sink, numbered(COUNT)).await;
            assert_eq!(said[..first], vec!["delivered"; first], "{bad:?}");
            assert_eq!(said[first], "is_a_folder", "{bad:?}");
            let rest = vec!["not_attempted"; COUNT - first - 1];
            assert_eq!(said[first + 1..], rest, "{bad:?}");
            let names = f.names();
            let (hidden, named): (Vec<_>, Vec<_>) =
                names.into_iter().partition(|n| n.starts_with('.'));
            let expected: Vec<_> = (0..first).map(|n| format!("f{n:02}")).collect();
            assert_eq!(named, expected, "{bad:?}");
            assert_eq!(hidden.len(), bad.len(), "unfinished files are removed");
        }
    }
}

#[tokio::test]
async fn of_writes_to_one_place_the_last_stays_also_when_they_are_repeats() {
    let f = Folder::new();
    let sink = f.sink(PLAIN).await;
    let same = (0..20).map(|n| to("a", &n.to_string()));
    assert_eq!(write(&sink, same).await, ["delivered"; 20]);
    assert_eq!(f.read("a"), "19");
    // The earlier one is not there any more, the later one is: both were applied.
    let again = [
        to("a", "18").key([1; 16]).may_be_repeat(),
        to("a", "19").key([2; 16]).may_be_repeat(),
    ];
    assert_eq!(write(&sink, again).await, ["delivered"; 2]);
    assert_eq!(f.read("a"), "19");
    assert_eq!(f.names(), ["a"]);
}

#[tokio::test]
async fn each_folder_is_flushed_once_for_a_batch() {
    let f = Folder::new();
    let sink = f.sink(PLAIN).await;
    let counts: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let seen = Arc::clone(&counts);
    sink.0.hook.set(move |step| {
        *seen.lock().entry(format!("{step:?}")).or_default() += 1;
    });
    let writes = (0..10).map(|n| to(&format!("{}/f{n}", n % 2), "x"));
    assert_eq!(write(&sink, writes).await, ["delivered"; 10]);
    let counts = counts.lock();
    assert_eq!((counts["FlushFile"], counts["FlushFolder"]), (10, 2));
}

#[tokio::test]
async fn a_folder_replaced_before_its_flush_confirms_nothing() {
    let f = Folder::new();
    let sink = f.sink(PLAIN).await;
    let (folder, away) = (f.path("a"), f.path("b"));
    sink.0.hook.set(move |step| {
        if step == At::FlushFolder {
            std::fs::rename(&folder, &away).unwrap();
            std::fs::create_dir(&folder).unwrap();
        }
    });
    let outcomes = testing::write(&sink, &testing::batch([to("a/x", "1")])).await;
    assert_eq!(
        (outcomes[0].code(), outcomes[0].applied()),
        ("stale_handle", Applied::Maybe)
    );
}

#[tokio::test]
async fn a_folder_another_batch_has_made_is_flushed_before_anything_counts() {
    let f = Folder::new();
    let sink = f.sink(PLAIN).await;
    let root = f.dir.path().canonicalize().unwrap();
    let connection = &sink.0.connection;
    std::fs::create_dir(f.path("made")).unwrap();
    assert!(!connection.is_durable(&root.join("made")));
    assert_eq!(write(&sink, [to("made/x", "1")]).await, ["delivered"]);
    assert!(connection.is_durable(&root.join("made")));
    let lazy = f
        .sink(r#"{"path": {"$template": 0}, "fsync": false}"#)
        .await;
    assert_eq!(write(&lazy, [to("lazy/x", "1")]).await, ["unconfirmed"]);
    assert!(!lazy.0.connection.is_durable(&root.join("lazy")));
}

#[tokio::test]
async fn what_an_earlier_try_left_is_removed_and_never_written_to() {
    let f = Folder::new();
    let sink = f.sink(KEEP).await;
    // The file has got its name, its unfinished name stayed, and a reader has moved it on.
    std::fs::write(f.path("moved"), "delivered before").unwrap();
    std::fs::hard_link(f.path("moved"), f.path(&unfinished(&sink, 0))).unwrap();
    assert_eq!(write(&sink, [to("a", "new")]).await, ["delivered"]);
    assert_eq!(
        (f.read("moved").as_str(), f.read("a").as_str()),
        ("delivered before", "new")
    );
    std::fs::write(f.path(&unfinished(&sink, 0)), "left").unwrap();
    let repeat = || [to("a", "new").may_be_repeat()];
    assert_eq!(write(&sink, repeat()).await, ["repeat"]);
    assert_eq!(f.names(), ["a", "moved"]);
}
