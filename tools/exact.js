// Runs a Go test binary of GOOS=js GOARCH=wasm so that it does the same again: it has
// one thread, its randomness (the order of goroutines, of maps, among ready channels) is
// drawn from a number, the schedule, and its clock counts how often it was asked.
//
//   node exact.js TEST.wasm FIRST COUNT ARGUMENTS…
//
// runs it under COUNT schedules from FIRST on, and says which fail, with what the first
// of these printed.
"use strict";

const fs = require("fs");
const path = require("path");
const util = require("util");

const [file, first, count, ...args] = process.argv.slice(2);
let draw = 0n;
let asked = 0;
let printed = [];

globalThis.require = require;
globalThis.path = path;
globalThis.TextEncoder = util.TextEncoder;
globalThis.TextDecoder = util.TextDecoder;
globalThis.performance = { timeOrigin: 946684800000, now: () => asked++ / 1000 };
globalThis.fs = Object.assign(Object.create(fs), {
	write(fd, bytes, offset, length, position, callback) {
		printed.push(Buffer.from(bytes.subarray(offset, offset + length)));
		queueMicrotask(() => callback(null, length));
	},
});
Object.defineProperty(globalThis, "crypto", {
	value: {
		getRandomValues(bytes) {
			for (let i = 0; i < bytes.length; i++) {
				draw = (draw * 6364136223846793005n + 1442695040888963407n) & 0xffffffffffffffffn;
				bytes[i] = Number(draw >> 56n);
			}
		},
	},
});
require(path.join(process.env.GOROOT, "lib", "wasm", "wasm_exec.js"));

async function main() {
	const module = await WebAssembly.compile(fs.readFileSync(file));
	let failed = 0;
	for (let schedule = Number(first); schedule < Number(first) + Number(count); schedule++) {
		[draw, asked, printed] = [BigInt(schedule), 0, []];
		let code = 0;
		const go = new Go();
		go.argv = [file, ...args];
		go.env = { GOGC: "off" };
		go.exit = (c) => { code = c; };
		await go.run(await WebAssembly.instantiate(module, go.importObject));
		if (code !== 0) {
			if (failed++ === 0) process.stdout.write(Buffer.concat(printed));
			console.log(`schedule ${schedule} fails`);
		}
	}
	console.log(`${failed} of ${count} schedules fail`);
	process.exitCode = failed === 0 ? 0 : 1;
}

main();
