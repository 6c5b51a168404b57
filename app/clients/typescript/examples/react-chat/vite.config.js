import { defineConfig } from "vite";

const server = process.env.KHALA_URL ?? "http://127.0.0.1:8000";

/** In development, Vite passes requests of the API on to Khala. In production, a reverse proxy does, or set VITE_KHALA_URL. */
export default defineConfig({
  server: { proxy: { "/api": { target: server, ws: true, changeOrigin: true, headers: { origin: server } } } },
});
