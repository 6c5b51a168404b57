// Icons of the page's frame: SVG paths in a box of 20 by 20.

export const CROSS = "M5 5l10 10M15 5 5 15";
export const MAGNIFIER = "M8.5 14a5.5 5.5 0 1 0 0-11 5.5 5.5 0 0 0 0 11zM12.5 12.5 17 17";
export const MENU = "M3 6h14M3 10h14M3 14h9";
export const MORE = "M4.6 10h.01M10 10h.01M15.4 10h.01";
export const FOLDER = "M3 6.2V15a1 1 0 0 0 1 1h12a1 1 0 0 0 1-1V7.5a1 1 0 0 0-1-1h-6L8.3 4.5H4a1 1 0 0 0-1 1z";
export const CHEVRON = "M7.5 5l5 5-5 5";
export const PENCIL = "M4 16l.8-3.4L13.5 4l2.5 2.5-8.6 8.7zM12 5.5 14.5 8";
export const CHECKLIST = "M3 5.5 4.5 7 7 4M3 14.5 4.5 16 7 13M10 6h7M10 14.5h7";
export const PLUS = "M10 4v12M4 10h12";
export const SHARE = "M10 12.5V3M6.5 6 10 2.5 13.5 6M4 10.5V16a1 1 0 0 0 1 1h10a1 1 0 0 0 1-1v-5.5";
