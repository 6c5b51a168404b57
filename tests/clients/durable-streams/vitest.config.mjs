// A loaded machine may stall for longer than the default of 5 s. The test's file has a hash in its name.
export default { test: { include: ["conformance.test-*.mjs"], testTimeout: 60_000 } };
