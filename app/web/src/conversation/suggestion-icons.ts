// Icons of the suggestions: SVG paths in a box of 20 by 20.

export { DOCUMENT } from "./icons.ts";
export const BULB = "M7.8 13.2a5 5 0 1 1 4.4 0V15H7.8zM8.3 17.3h3.4";
export const CALCULATOR = "M6 3h8a1 1 0 0 1 1 1v12a1 1 0 0 1-1 1H6a1 1 0 0 1-1-1V4a1 1 0 0 1 1-1zM7.8 6.3h4.4M7.8 10h.01M10 10h.01M12.2 10h.01M7.8 13.5h.01M10 13.5h.01M12.2 13.5h.01";
export const ENVELOPE = "M4.5 5h11A1.5 1.5 0 0 1 17 6.5v7a1.5 1.5 0 0 1-1.5 1.5h-11A1.5 1.5 0 0 1 3 13.5v-7A1.5 1.5 0 0 1 4.5 5zM3.5 6.5 10 11l6.5-4.5";
export const GLOBE = "M10 3a7 7 0 1 0 0 14 7 7 0 1 0 0-14M3 10h14M10 3c2.2 2 3.2 4.3 3.2 7s-1 5-3.2 7c-2.2-2-3.2-4.3-3.2-7s1-5 3.2-7z";
export const SUN = "M10 6.8a3.2 3.2 0 1 0 0 6.4 3.2 3.2 0 1 0 0-6.4M10 2.5v1.5M10 16v1.5M2.5 10H4M16 10h1.5M4.700 4.700l1 1M14.3 14.3l1 1M4.700 15.3l1-1M14.3 5.700l1-1";
export const TABLE = "M4.5 4h11A1.5 1.5 0 0 1 17 5.5v9a1.5 1.5 0 0 1-1.5 1.5h-11A1.5 1.5 0 0 1 3 14.5v-9A1.5 1.5 0 0 1 4.5 4zM3 8.5h14M8.5 8.5V16";
