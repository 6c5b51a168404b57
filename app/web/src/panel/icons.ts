// Icons of the side panel: SVG paths in a box of 20 by 20.

export const BACK = "M16 10H4.5M9 5.5 4.5 10 9 14.5";
export const LIST = "M7 5.5h10M7 10h10M7 14.5h10M3.2 5.5h.01M3.2 10h.01M3.2 14.5h.01";
export const EXPAND = "M11.5 4H16v4.5M8.5 16H4v-4.5M16 4l-5 5M4 16l5-5";
export const SHRINK = "M16 8.5h-4.5V4M4 11.5h4.5V16M11.5 8.5 16.5 3.5M8.5 11.5l-5 5";
export const FOLDER = "M3 5.5A1.5 1.5 0 0 1 4.5 4H8l1.8 2h5.7A1.5 1.5 0 0 1 17 7.5v7a1.5 1.5 0 0 1-1.5 1.5h-11A1.5 1.5 0 0 1 3 14.5z";
export const OPEN_FOLDER = "M3 14.5v-9A1.5 1.5 0 0 1 4.5 4H8l1.8 2h5.2A1.5 1.5 0 0 1 16.5 7.5V9M3 14.5 5.2 9h13L16 14.6a1.5 1.5 0 0 1-1.4 1.4H4.5A1.5 1.5 0 0 1 3 14.5z";
export const FILE = "M6 3h5l4 4v10H6zM11 3v4h4";
export const EYE = "M2.5 10S5.2 4.8 10 4.8 17.5 10 17.5 10 14.8 15.2 10 15.2 2.5 10 2.5 10zM10 7.8a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4z";
export const CODE = "M7 5.5 2.8 10 7 14.5M13 5.5l4.2 4.5-4.2 4.5";
export const PLUS_MINUS = "M10 3.5v8M6 7.5h8M6 15.5h8";
export const SAVE = "M10 3v9.5M6.5 9 10 12.5 13.5 9M4 13v2.5a1 1 0 0 0 1 1h10a1 1 0 0 0 1-1V13";
export const ARROW_UP = "M10 16V4.5M5.5 9 10 4.5 14.5 9";
export const ARROW_DOWN = "M10 4v11.5M5.5 11l4.5 4.5 4.5-4.5";
