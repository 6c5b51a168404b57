// A file as a `data:` address, which Vite offers for every kind of file but has no type for.
declare module "*?inline&url" {
  const address: string;
  export default address;
}
