//! The example runs.

#[path = "../../examples/hello_app.rs"]
mod hello_app;

#[test]
fn hello() {
    hello_app::main().unwrap();
}
