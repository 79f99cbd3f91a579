// Every section of the deck, in the order in which help and the resolved deck show them.
#pragma once

#include "deck/keys_batch.hpp"
#include "deck/keys_checkpoint.hpp"
#include "deck/keys_comm.hpp"
#include "deck/keys_context.hpp"
#include "deck/keys_data.hpp"
#include "deck/keys_device.hpp"
#include "deck/keys_guard.hpp"
#include "deck/keys_log.hpp"
#include "deck/keys_memory.hpp"
#include "deck/keys_mesh.hpp"
#include "deck/keys_model.hpp"
#include "deck/keys_optimizer.hpp"
#include "deck/keys_pipeline.hpp"
#include "deck/keys_precision.hpp"
#include "deck/keys_run.hpp"
#include "deck/keys_zero.hpp"
