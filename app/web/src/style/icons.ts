// Icons of the page's frame: SVG paths in a box of 20 by 20.

export const CROSS = "M5 5l10 10M15 5 5 15";
export const MAGNIFIER = "M8.5 14a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11zM12.5 12.5 17 17";
export const MENU = "M3 6h14M3 10h14M3 14h9";
/** A window with a panel where text begins. */
export const PANEL = "M4.5 4h11A1.5 1.5 0 0 1 17 5.5v9a1.5 1.5 0 0 1-1.5 1.5h-11A1.5 1.5 0 0 1 3 14.5v-9A1.5 1.5 0 0 1 4.5 4zM8 4v12";
export const ARCHIVE = "M3 4.5h14V8H3zM4.5 8v7a1 1 0 0 0 1 1h9a1 1 0 0 0 1-1V8M8 11h4";
export const COMPOSE = "M16 10.5V15a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1V5a1 1 0 0 1 1-1h4.5M8.5 11.5l.5-2.4 6-6 1.9 1.9-6 6z";
export const HOURGLASS = "M6 3.5h8M6 16.5h8M7 3.5V6l3 4-3 4v2.5M13 3.5V6l-3 4 3 4v2.5";
export const MORE = "M4.6 10h.01M10 10h.01M15.4 10h.01";
export const FOLDER = "M3 6.2V15a1 1 0 0 0 1 1h12a1 1 0 0 0 1-1V7.5a1 1 0 0 0-1-1h-6L8.3 4.5H4a1 1 0 0 0-1 1z";
export const ROBOT = "M5.5 7h9A1.5 1.5 0 0 1 16 8.5v5a1.5 1.5 0 0 1-1.5 1.5h-9A1.5 1.5 0 0 1 4 13.5v-5A1.5 1.5 0 0 1 5.5 7zM10 7V4M7.8 10.5v1M12.2 10.5v1";
export const BOLT = "M11 3 4.5 11.5H10L9 17l6.5-8.5H10z";
export const CHEVRON_DOWN = "M5 7.5l5 5 5-5";
export const CHEVRON = "M7.5 5l5 5-5 5";
export const PENCIL = "M4 16l.8-3.4L13.5 4l2.5 2.5-8.6 8.7zM12 5.5 14.5 8";
export const CHECKLIST = "M3 5.5 4.5 7 7 4M3 14.5 4.5 16 7 13M10 6h7M10 14.5h7";
export const BOOKMARK = "M6 3.5h8a.5.5 0 0 1 .5.5v12.5L10 13.2l-4.5 3.3V4a.5.5 0 0 1 .5-.5z";
export const SLIDERS = "M3 6.5h7.5M15 6.5h2M3 13.5h2M9.5 13.5H17M12.7 4.3a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4zM7.3 11.3a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4z";
export const COPY = "M8 7h7a1 1 0 0 1 1 1v7a1 1 0 0 1-1 1H8a1 1 0 0 1-1-1V8a1 1 0 0 1 1-1zM4.5 13A1 1 0 0 1 4 12V5a1 1 0 0 1 1-1h7a1 1 0 0 1 .9.6";
export const CHECK = "M4.5 10.5 8.5 14.5 15.5 6";
export const PLUS = "M10 4v12M4 10h12";
export const SHARE = "M10 12.5V3M6.5 6 10 2.5 13.5 6M4 10.5V16a1 1 0 0 0 1 1h10a1 1 0 0 0 1-1v-5.5";
