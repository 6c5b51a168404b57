// The session worker. See session/PROTOCOL.md.

import { serve } from "../session/serve.ts";

serve(self);
