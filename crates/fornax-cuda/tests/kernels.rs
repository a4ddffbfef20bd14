//! Every kernel compiles, for every generation of devices that it may run on. Needs no device.

const WHY: &str = "every kernel is CUDA C++ that NVRTC takes";

macro_rules! compiles {
    ($($name:ident)*) => {$(
        #[test]
        #[ignore = "needs NVIDIA's run-time compiler: `cargo xtask ci` fetches it"]
        fn $name() {
            assert!(fornax_cuda::compile_kernels(stringify!($name)).expect(WHY) > 20);
        }
    )*};
}

compiles! { sm_80 sm_90a sm_100 }
