//! Keeps every frame that the packet path sent, for somebody else's dissector to read
//! (packaging/decode-tables): where RINGWAY_CAPTURE names a directory, one pcapng file a process,
//! each frame with a comment that says which test and row it came from.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::Write as _;
use std::sync::{Mutex, OnceLock};

thread_local! {
    static TEST: RefCell<String> = const { RefCell::new(String::new()) };
    static ROW: RefCell<String> = const { RefCell::new(String::new()) };
    static DAMAGED: RefCell<Option<&'static str>> = const { RefCell::new(None) };
    static LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}

/// The test that this thread runs from now on.
pub(crate) fn begin(test: &str) {
    TEST.set(test.to_owned());
    ROW.take();
    LEFT_OUT.set(false);
}

/// Keeps no capture of this test: its frames are mutated, some of them sound and some not.
pub fn leave_out() {
    LEFT_OUT.set(true);
}

/// Frames that `feed` feeds are this row's.
pub(crate) fn row<T>(name: &str, feed: impl FnOnce() -> T) -> T {
    ROW.set(name.to_owned());
    let fed = feed();
    ROW.take();
    fed
}

/// Until this is dropped, what this thread's frames give is damaged, and must be found to be.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Damaged(());

/// From now on this thread feeds frames that are damaged on purpose, and `why`: the dissector
/// must complain of each that is sent on, as it must not of any other.
pub fn damaged(why: &'static str) -> Damaged {
    DAMAGED.set(Some(why));
    Damaged(())
}

impl Drop for Damaged {
    fn drop(&mut self) {
        DAMAGED.set(None);
    }
}

/// A frame as the packet path sent it.
pub fn sent(frame: &[u8]) {
    if LEFT_OUT.get() {
        return;
    }
    if let Some(file) = file() {
        let block = packet(frame, &comment());
        // One write a frame: what is there stays there when a test fails.
        file.lock().unwrap().write_all(&block).unwrap();
    }
}

fn comment() -> String {
    let test = TEST.with_borrow(|test| match test.is_empty() {
        true => std::thread::current().name().unwrap_or("?").to_owned(),
        false => test.clone(),
    });
    let row =
        ROW.with_borrow(|row| if row.is_empty() { String::new() } else { format!(": {row}") });
    let damaged = DAMAGED.with_borrow(|why| why.map(|why| format!(" [damaged: {why}]")));
    format!("{test}{row}{}", damaged.unwrap_or_default())
}

fn file() -> Option<&'static Mutex<File>> {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || {
        let directory = std::env::var_os("RINGWAY_CAPTURE")?;
        std::fs::create_dir_all(&directory).unwrap();
        let name = format!("{}.pcapng", std::process::id());
        let mut file = File::create(std::path::Path::new(&directory).join(name)).unwrap();
        file.write_all(&head()).unwrap();
        Some(Mutex::new(file))
    };
    FILE.get_or_init(open).as_ref()
}

/// Section header and one Ethernet interface (draft-ietf-opsawg-pcapng, sections 4.1 and 4.2).
fn head() -> Vec<u8> {
    let section = [&0x1a2b_3c4du32.to_ne_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let ethernet = [1u16.to_ne_bytes(), [0; 2], [0; 2], [0; 2]].concat();
    [block(0x0a0d_0d0a, &section), block(1, &ethernet)].concat()
}

/// Enhanced packet block (section 4.3) with a comment.
fn packet(frame: &[u8], comment: &str) -> Vec<u8> {
    let mut body = Vec::new();
    let length = (frame.len() as u32).to_ne_bytes();
    for word in [[0; 4], [0; 4], [0; 4], length, length] {
        body.extend(word);
    }
    body.extend(frame);
    pad(&mut body);
    body.extend(1u16.to_ne_bytes());
    body.extend((comment.len() as u16).to_ne_bytes());
    body.extend(comment.as_bytes());
    pad(&mut body);
    body.extend([0; 4]);
    block(6, &body)
}

fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 12).to_ne_bytes();
    [&kind.to_ne_bytes()[..], &length, body, &length].concat()
}

fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}
