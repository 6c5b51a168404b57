// What `messages.js` makes of the messages of a language.

declare module "virtual:messages/*" {
  const catalog: import("./messages.ts").Catalog;
  export default catalog;
}
