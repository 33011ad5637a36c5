use ringway_bpf_tests::*;
use ringway_bpf_tests::cast::*;
use ringway_bpf_tests::frame::*;
#[test]
fn smoke() {
    if !can_run("smoke") { return; }
    let t = std::time::Instant::now();
    let mut world = World::new();
    eprintln!("world {:?}", t.elapsed());
    for family in FAMILIES {
        for port in [ports::SAME, ports::ACROSS, ports::POOL, ports::CLIENT] {
            let flow = world.connect(family, port);
            eprintln!("{:?}", world.state(&flow));
            let flow = world.open(family, UDP, port);
            world.answer(&flow, 0);
            eprintln!("{:?}", world.state(&flow));
        }
    }
    let t = std::time::Instant::now();
    World::new();
    eprintln!("world {:?}", t.elapsed());
}
