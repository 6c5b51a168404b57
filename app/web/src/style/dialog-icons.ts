// Icons of dialogs and menus, which are loaded when they are opened: SVG paths in a box of 20 by 20.

export const SPARK = "M10 3l1.7 5.3L17 10l-5.3 1.7L10 17l-1.7-5.3L3 10l5.3-1.7z";
export const BELL = "M5.5 13.5h9L13.5 12V8.5a3.5 3.5 0 0 0-7 0V12zM8.7 16a1.5 1.5 0 0 0 2.6 0";
export const PLUG = "M7 3v4M13 3v4M5 7h10v2a5 5 0 0 1-10 0zM10 14v3";
export const DATABASE = "M4 5.2c0-1.2 2.7-2.2 6-2.2s6 1 6 2.2-2.7 2.2-6 2.2-6-1-6-2.2zM4 5.2v9.6c0 1.2 2.7 2.2 6 2.2s6-1 6-2.2V5.2M4 10c0 1.2 2.7 2.2 6 2.2s6-1 6-2.2";
export const BUBBLE = "M4.5 4h11a1.5 1.5 0 0 1 1.5 1.5v7a1.5 1.5 0 0 1-1.5 1.5H9l-4 3v-3h-.5A1.5 1.5 0 0 1 3 12.5v-7A1.5 1.5 0 0 1 4.5 4z";
export const LINES = "M4 5.5h12M4 10h12M4 14.5h7";
export const PAGE = "M6 3h5l4 4v10H6zM11 3v4h4";
export const CHART = "M4 16.5h12M6 13.5v-4M10 13.5v-9M14 13.5V8";
export const KEY = "M7.5 16a3.5 3.5 0 1 0 0-7 3.5 3.5 0 0 0 0 7zM10 10l6.5-6.5M13.5 6.5l2.5 2.5";
export const PERSON = "M10 10a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM4.5 16.5c.6-2.7 2.7-4 5.5-4s4.9 1.3 5.5 4";
export const ENTER = "M11.5 4H15a1 1 0 0 1 1 1v10a1 1 0 0 1-1 1h-3.5M3.5 10H12M9 6.8 12.2 10 9 13.2";
export const PIN = "M7.5 3.5h5l-.6 5 2.6 2.5v1.5h-9V11l2.6-2.5zM10 12.5V17";
export const DOWNLOAD = "M10 3.5v9M6.5 9 10 12.5 13.5 9M4 13.5V15a1 1 0 0 0 1 1h10a1 1 0 0 0 1-1v-1.5";
export const PRINTER = "M6 7V3.5h8V7M6 14H4.5A1.5 1.5 0 0 1 3 12.5v-4A1.5 1.5 0 0 1 4.5 7h11A1.5 1.5 0 0 1 17 8.5v4a1.5 1.5 0 0 1-1.5 1.5H14M6 11.5h8v5H6z";
export const TURN_BACK = "M4 10a6 6 0 1 0 2-4.5M6 2v3.8h3.8";
export const BIN = "M4 6h12M8 6V4h4v2M5.5 6l.7 10.5h7.6L14.5 6M8.5 9v5M11.5 9v5";
export const SUN_AND_MOON = "M10 4a6 6 0 1 0 0 12zM10 4a6 6 0 0 1 0 12";
export const LOCK = "M5.5 9h9A1.5 1.5 0 0 1 16 10.5v5a1.5 1.5 0 0 1-1.5 1.5h-9A1.5 1.5 0 0 1 4 15.5v-5A1.5 1.5 0 0 1 5.5 9zM7 9V6.5a3 3 0 0 1 6 0V9";
export const CHAIN = "M8.5 11.5a3 3 0 0 0 4.3 0l2.9-2.9a3 3 0 0 0-4.3-4.3L10 5.7M11.5 8.5a3 3 0 0 0-4.3 0l-2.9 2.9a3 3 0 0 0 4.3 4.3l1.4-1.4";
export const GLOBE = "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM3 10h14M10 3c4.3 4.3 4.3 9.7 0 14M10 3c-4.3 4.3-4.3 9.7 0 14";
export const KEYBOARD = "M3.5 5h13a1 1 0 0 1 1 1v8a1 1 0 0 1-1 1h-13a1 1 0 0 1-1-1V6a1 1 0 0 1 1-1zM5.8 8.3h.01M8.6 8.3h.01M11.4 8.3h.01M14.2 8.3h.01M7 11.8h6";
