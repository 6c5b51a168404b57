// Entry point of the operators' console.

import { mount } from "svelte";
import Console from "./Console.svelte";

mount(Console, { target: document.body });
