// How Mermaid's diagrams look: the colours of the page, light or dark, and sizes of text that stay readable.

/** The diagram's ground is that of code blocks (`--code`). */
const LIGHT = {
  ground: "#f5f6f9", raised: "#ffffff", tint: "#e4e8fb", text: "#1a1d24", soft: "#5b6270", line: "#d5d9e2", edge: "#7d8492", accent: "#3f51d1", onTone: "#ffffff",
  note: "#fdf0c8", noteEdge: "#b98a1f", bad: "#b3261e",
};
const DARK: typeof LIGHT = {
  ground: "#181b21", raised: "#1e2229", tint: "#283152", text: "#e7e9ee", soft: "#a0a7b4", line: "#333945", edge: "#757c8a", accent: "#8fa2ff", onTone: "#10131c",
  note: "#3b321a", noteEdge: "#a98736", bad: "#ff8a80",
};
/** Colours that tell things apart: 4.5:1 against `onTone` and the ground. */
const LIGHT_TONES = ["#3f51d1", "#0b7285", "#2b7a3d", "#9c4a00", "#a61e6d", "#6741b8", "#b3261e", "#5b6270"];
const DARK_TONES = ["#8fa2ff", "#66d9e8", "#8ce99a", "#ffc078", "#faa2c1", "#c0a6ff", "#ff8a80", "#a0a7b4"];
const MAX_TONES = 12;
/** Diagrams that fill their container are drawn for the width of an answer, so that their text is not shrunk. */
export const DIAGRAM_WIDTH_PX = 700;

/** The colours that tell things apart, and that of text on them. */
export function tonesOf(isDark: boolean): [tones: readonly string[], onTone: string] {
  return isDark ? [DARK_TONES, DARK.onTone] : [LIGHT_TONES, LIGHT.onTone];
}

/** The options of Mermaid that decide how diagrams look. */
export function diagramLook(isDark: boolean): Record<string, unknown> {
  const c = isDark ? DARK : LIGHT;
  const tones = isDark ? DARK_TONES : LIGHT_TONES;
  return {
    theme: "base",
    themeVariables: { ...generalColours(c, isDark), ...numberedColours(c, tones), ...colourOfKinds(c, tones) },
    gantt: { useWidth: DIAGRAM_WIDTH_PX, barHeight: 26, barGap: 6, topPadding: 56, leftPadding: 90, fontSize: 13, sectionFontSize: 13, numberSectionStyles: 4, axisFormat: "%m-%d" },
    sankey: { width: DIAGRAM_WIDTH_PX, height: 380 },
    quadrantChart: { chartWidth: 520, chartHeight: 480, pointLabelFontSize: 14, quadrantLabelFontSize: 15 },
    journey: { taskFontSize: 14, leftMargin: 110, textPlacement: "tspan", actorColours: tones },
  };
}

function generalColours(c: typeof LIGHT, isDark: boolean): Record<string, unknown> {
  return {
    darkMode: isDark, background: c.ground, fontSize: "16px",
    primaryColor: c.tint, primaryTextColor: c.text, primaryBorderColor: c.accent,
    secondaryColor: c.raised, secondaryTextColor: c.text, secondaryBorderColor: c.edge,
    tertiaryColor: c.raised, tertiaryTextColor: c.text, tertiaryBorderColor: c.edge,
    mainBkg: c.tint, nodeBorder: c.accent, nodeTextColor: c.text, lineColor: c.soft, arrowheadColor: c.soft, textColor: c.text, titleColor: c.text, border1: c.edge, border2: c.edge,
    clusterBkg: c.raised, clusterBorder: c.edge, edgeLabelBackground: c.ground, noteBkgColor: c.note, noteBorderColor: c.noteEdge, noteTextColor: c.text,
    errorBkgColor: c.raised, errorTextColor: c.bad,
  };
}

function numberedColours(c: typeof LIGHT, tones: readonly string[]): Record<string, unknown> {
  const numbered: Record<string, unknown> = {};
  for (let at = 0; at < MAX_TONES; at++) {
    const tone = tones[at % tones.length];
    Object.assign(numbered, {
      [`cScale${at}`]: tone, [`cScaleLabel${at}`]: c.onTone, [`cScaleInv${at}`]: c.soft, [`cScalePeer${at}`]: c.edge, [`pie${at + 1}`]: tone,
      [`git${at}`]: tone, [`gitInv${at}`]: c.text, [`gitBranchLabel${at}`]: c.onTone, [`fillType${at}`]: at % 2 === 0 ? c.tint : c.raised, [`surface${at}`]: c.tint, [`surfacePeer${at}`]: c.edge, [`actor${at}`]: tone,
    });
  }
  return numbered;
}

function colourOfKinds(c: typeof LIGHT, tones: readonly string[]): Record<string, unknown> {
  return {
    actorBkg: c.tint, actorBorder: c.accent, actorTextColor: c.text, actorLineColor: c.edge, signalColor: c.text, signalTextColor: c.text, labelBoxBkgColor: c.tint, labelBoxBorderColor: c.accent,
    labelTextColor: c.text, loopTextColor: c.text, activationBkgColor: c.raised, activationBorderColor: c.edge, sequenceNumberColor: c.ground,
    labelColor: c.text, altBackground: c.raised, stateBkg: c.tint, stateLabelColor: c.text, transitionColor: c.soft, transitionLabelColor: c.text, specialStateColor: c.text, compositeBackground: c.raised, compositeTitleBackground: c.tint, compositeBorder: c.edge, innerEndBackground: c.accent,
    classText: c.text, attributeBackgroundColorOdd: c.raised, attributeBackgroundColorEven: c.ground, rowOdd: c.raised, rowEven: c.ground, relationColor: c.soft, relationLabelBackground: c.ground, relationLabelColor: c.text,
    requirementBackground: c.tint, requirementBorderColor: c.accent, requirementTextColor: c.text,
    sectionBkgColor: c.raised, altSectionBkgColor: c.ground, sectionBkgColor2: c.raised, excludeBkgColor: c.line, gridColor: c.line, todayLineColor: c.bad, vertLineColor: c.accent,
    taskBkgColor: c.accent, taskBorderColor: c.accent, taskTextColor: c.onTone, taskTextLightColor: c.onTone, taskTextOutsideColor: c.text, taskTextDarkColor: c.text, taskTextClickableColor: c.text,
    activeTaskBkgColor: c.tint, activeTaskBorderColor: c.accent, doneTaskBkgColor: c.line, doneTaskBorderColor: c.edge, critBkgColor: c.bad, critBorderColor: c.bad,
    pieTitleTextSize: "18px", pieTitleTextColor: c.text, pieSectionTextSize: "15px", pieSectionTextColor: c.onTone, pieLegendTextSize: "15px", pieLegendTextColor: c.text, pieStrokeColor: c.ground, pieStrokeWidth: "2px", pieOuterStrokeWidth: "0px", pieOuterStrokeColor: c.ground, pieOpacity: "1",
    quadrant1Fill: c.tint, quadrant2Fill: c.raised, quadrant3Fill: c.ground, quadrant4Fill: c.raised, quadrant1TextFill: c.text, quadrant2TextFill: c.text, quadrant3TextFill: c.text, quadrant4TextFill: c.text,
    quadrantPointFill: c.accent, quadrantPointTextFill: c.text, quadrantXAxisTextFill: c.soft, quadrantYAxisTextFill: c.soft, quadrantInternalBorderStrokeFill: c.edge, quadrantExternalBorderStrokeFill: c.edge, quadrantTitleFill: c.text,
    commitLabelColor: c.text, commitLabelBackground: c.ground, commitLabelFontSize: "12px", tagLabelColor: c.text, tagLabelBackground: c.tint, tagLabelBorder: c.accent, tagLabelFontSize: "12px", commitLineColor: c.line,
    faceColor: "#fde9a8", personBkg: c.tint, personBorder: c.accent,
    xyChart: {
      backgroundColor: c.ground, titleColor: c.text, dataLabelColor: c.text, xAxisLabelColor: c.soft, xAxisTitleColor: c.text, xAxisTickColor: c.edge, xAxisLineColor: c.edge, yAxisLabelColor: c.soft, yAxisTitleColor: c.text, yAxisTickColor: c.edge, yAxisLineColor: c.edge,
      plotColorPalette: [tones[0], tones[3], tones[1], tones[4], tones[2], tones[5]].join(","),
    },
    radar: { axisColor: c.edge, graticuleColor: c.line },
  };
}

/** Styles of the finished picture, for what Mermaid's variables do not reach: colours that are constants in it. */
export function diagramStyle(isDark: boolean): string {
  const c = isDark ? DARK : LIGHT;
  const c4 = 'svg[aria-roledescription="c4"]';
  return `
    .node :is(rect, path, polygon, circle) { filter: none !important; }
    .node rect.basic { rx: 4px; ry: 4px; }
    .edgeLabel rect, .labelBkg { fill: ${c.ground} !important; opacity: 1 !important; }
    .edgeLabel text, .edgeTerminals text, .commit-label { paint-order: stroke; stroke: ${c.ground}; stroke-width: 6px; stroke-linejoin: round; }
    .rect { fill-opacity: 0.25; }
    .grid .tick text { fill: ${c.soft} !important; font-size: 13px; }
    .grid .tick line { stroke: ${c.line} !important; }
    .taskText, .taskTextOutsideRight, .taskTextOutsideLeft, .sectionTitle { font-size: 13px !important; }
    .critText0, .critText1, .critText2, .critText3 { fill: ${c.onTone} !important; }
    .lineWrapper line { stroke: ${c.soft} !important; }
    text.journey-section, text.task { fill: ${c.text} !important; }
    svg[aria-roledescription="sankey"] text { fill: ${c.text} !important; stroke: ${c.ground}; stroke-width: 4px; paint-order: stroke; }
    ${c4} > text, ${c4} text[fill="#444444"] { fill: ${c.text} !important; }
    ${c4} [stroke="#444444"] { stroke: ${c.soft} !important; }
    ${c4} marker path { fill: ${c.soft} !important; }
    .statediagram-state > .label text { text-anchor: middle; }
  `;
}
