// A file as a `data:` URL, for which Vite has no type.
declare module "*?inline&url" {
  const address: string;
  export default address;
}
