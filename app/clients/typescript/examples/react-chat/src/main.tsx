import { KhalaProvider } from "@khala/react";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { App } from "./App.tsx";
import { khala } from "./khala.ts";
import "./style.css";

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <KhalaProvider client={khala}>
        <App />
      </KhalaProvider>
    </StrictMode>,
  );
}
