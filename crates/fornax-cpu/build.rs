//! Tells the tests which instruction sets of x86 this machine has: tests of one that is missing
//! report themselves ignored.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(no_avx512)");
    println!("cargo::rustc-check-cfg=cfg(no_avx512_bf16)");
    println!("cargo::rustc-check-cfg=cfg(no_avx2_vnni)");
    println!("cargo::rustc-check-cfg=cfg(no_avx2)");
    println!("cargo::rustc-check-cfg=cfg(no_amx)");
    // Tests for another kind of processor run elsewhere, or emulated.
    let for_this =
        std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == std::env::consts::ARCH);
    #[cfg(target_arch = "x86_64")]
    let (avx512, avx2) = (
        is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw"),
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
    );
    #[cfg(not(target_arch = "x86_64"))]
    let (avx512, avx2) = (false, false);
    // Linux names the matrix unit where both processor and system have it.
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let amx = avx512 && processor.contains(" amx_bf16") && processor.contains(" amx_int8");
    #[cfg(target_arch = "x86_64")]
    let (brains, avx2_vnni) = (
        avx512 && is_x86_feature_detected!("avx512bf16"),
        avx2 && is_x86_feature_detected!("avxvnni"),
    );
    #[cfg(not(target_arch = "x86_64"))]
    let (brains, avx2_vnni) = (false, false);
    for (found, cfg) in [
        (avx512, "no_avx512"),
        (brains, "no_avx512_bf16"),
        (avx2_vnni, "no_avx2_vnni"),
        (avx2, "no_avx2"),
        (amx, "no_amx"),
    ] {
        if !(found && for_this) {
            println!("cargo::rustc-cfg={cfg}");
        }
    }
}
