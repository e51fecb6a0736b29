import { env } from "node:process";
import { defineConfig } from "vite";

// The module of WebAssembly that `cargo xtask page` has compiled.
const module = env.CHIMERA_MODULE ?? "/the/module/is/not/built";

export default defineConfig({
  // Relative addresses: the page works below any path of any server of files.
  base: "./",
  build: { target: "es2022", assetsInlineLimit: 0, modulePreload: { polyfill: false } },
  resolve: { alias: [{ find: /^#module/, replacement: module }] },
  worker: { format: "es" },
});
