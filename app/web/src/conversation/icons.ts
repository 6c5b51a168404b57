// Icons of the conversation: SVG paths in a box of 20 by 20.

export const DOWN = "M10 4v12M5 11l5 5 5-5";
export const UP = "M10 16V4M4.5 9.5 10 4l5.5 5.5";
export const PAPERCLIP = "M15.5 9.5 10 15a3.5 3.5 0 0 1-5-5l6-6a2.3 2.3 0 0 1 3.3 3.3L8.5 13a1.1 1.1 0 0 1-1.6-1.6L12 6.5";
export const DOCUMENT = "M6 3h5l4 4v10H6zM11 3v4h4";
export const LEFT = "M12 5l-5 5 5 5";
export const RIGHT = "M8 5l5 5-5 5";
export const REGENERATE = "M16 10a6 6 0 1 1-2-4.5M14 2v3.8h-3.8";
export const INFO = "M10 3a7 7 0 1 0 0 14 7 7 0 1 0 0-14M10 9.2v4.3M10 6.6v.01";
export const MORE = "M4 10a.7.7 0 1 0 1.4 0 .7.7 0 1 0-1.4 0M9.3 10a.7.7 0 1 0 1.4 0 .7.7 0 1 0-1.4 0M14.6 10a.7.7 0 1 0 1.4 0 .7.7 0 1 0-1.4 0";
export const MICROPHONE = "M10 12.5a2.5 2.5 0 0 0 2.5-2.5V5.5a2.5 2.5 0 0 0-5 0V10a2.5 2.5 0 0 0 2.5 2.5zM5 9.5a5 5 0 0 0 10 0M10 14.5V17M7.5 17h5";
export const THUMB_UP = "M6.5 9 9.5 3.5a1.6 1.6 0 0 1 2.2 1.9L11 8h4.2a1.5 1.5 0 0 1 1.5 1.8l-1 5A1.5 1.5 0 0 1 14.2 16H6.5zM3.5 9h3v7h-3z";
export const THUMB_DOWN = "M6.5 11 9.5 16.5a1.6 1.6 0 0 0 2.2-1.9L11 12h4.2a1.5 1.5 0 0 0 1.5-1.8l-1-5A1.5 1.5 0 0 0 14.2 4H6.5zM3.5 4h3v7h-3z";
export const CLOCK = "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM10 6.2V10l2.6 1.8";
