// The shapes of data that loads.

export type SkeletonShape = "rows" | "tiles" | "chart";
