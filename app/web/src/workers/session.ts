// A session in a worker of its own: see session/PROTOCOL.md.

import { serve } from "../session/serve.ts";

serve(self);
