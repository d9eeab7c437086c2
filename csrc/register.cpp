// Gives torch this library's kernels. The ops themselves are declared in Python.
#include "ops.h"

STABLE_TORCH_LIBRARY_IMPL(hisparse, HISPARSE_DISPATCH_KEY, library) {
  using namespace hisparse::HISPARSE_BACKEND;
  library.impl("resolve", TORCH_BOX(&resolve));
  library.impl("gather_compact", TORCH_BOX(&gather_compact));
  library.impl("gather_plan", TORCH_BOX(&gather_plan));
  library.impl("mirror_rows", TORCH_BOX(&mirror_rows));
  library.impl("invalidate", TORCH_BOX(&invalidate));
  library.impl("invalidate_blocks", TORCH_BOX(&invalidate_blocks));
  library.impl("reset_rows", TORCH_BOX(&reset_rows));
  library.impl("translate", TORCH_BOX(&translate));
  library.impl("copy_blocks", TORCH_BOX(&copy_blocks));
  library.impl("stage_prefill", TORCH_BOX(&stage_prefill));
}
