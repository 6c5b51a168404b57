import { Khala, newKey } from "@khala/client";
import { KhalaProvider } from "@khala/react";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { App } from "./App.tsx";
import "./style.css";

// A visitor's key, which this browser keeps. An application with users of its own passes a token in place of it.
const anonKey = (localStorage["khala.key"] as string | undefined) ?? newKey();
localStorage["khala.key"] = anonKey;
const khala = new Khala({ server: location.origin, credentials: { anonKey } });

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
