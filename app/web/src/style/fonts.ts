// The typefaces of text and of code. A browser loads a file of them when the page shows a character that is in it. They are
// imported here, and not in a style, so that the build lists their licences.

import "@fontsource-variable/geist/wght.css";
import "@fontsource-variable/geist/wght-italic.css";
import "@fontsource-variable/geist-mono/wght.css";
