// Opens the picture of a code block over the whole page.

import { mount, unmount } from "svelte";

import PictureViewer from "./PictureViewer.svelte";

export function viewPicture(language: string, code: string): void {
  const viewer = mount(PictureViewer, { target: document.body, props: { language, code, onclose: () => void unmount(viewer) } });
}
